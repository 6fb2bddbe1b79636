"""Text that tries to become markup or script."""

from __future__ import annotations

import re

_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')

PAYLOADS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</SCRIPT ><script>alert(1)</script>",
    "</script\n><script>alert(1)</script>",
    "</script/x><script>alert(1)</script>",
    "<!--<script>alert(1)</script>",
    "<!-- </script><script>alert(1)//-->",
    "--><script>alert(1)</script>",
    "]]><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<img/src=x/onerror=alert(1)>",
    "<IMG SRC=javascript:alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x>",
    "<svg/onload=alert`1`>",
    "<math><mtext></mtext><script>alert(1)</script></math>",
    "<body onload=alert(1)>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<video><source onerror=alert(1)></video>",
    "<marquee onstart=alert(1)>",
    "<style>*{background:url(javascript:alert(1))}</style>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</noscript><script>alert(1)</script>",
    "</text></svg><script>alert(1)</script>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content=0;url=javascript:alert(1)>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<form action=javascript:alert(1)><button>x</button></form>",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    '"};alert(1);//',
    "'-alert(1)-'",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "${alert(1)}`;alert(1)//",
    "\u2028alert(1)\u2029</script>",
    "\x00<script>alert(1)</script>\x1b",
    "{{constructor.constructor('alert(1)')()}}</script>",
]


def without_policy(page: str) -> str:
    """A page whose scripts a browser would run, whatever their hash."""
    bare, count = _POLICY.subn("", page)
    assert count == 1, "the page has no policy to take out"
    return bare
