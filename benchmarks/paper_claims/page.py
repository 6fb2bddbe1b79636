def write_page(results, path):
    raise SystemExit("not yet")
