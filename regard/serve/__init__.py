"""Translation as a service. What is here knows nothing of HTTP; `web/` alone imports the web framework."""
