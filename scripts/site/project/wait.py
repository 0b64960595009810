"""Waits until a server answers: ``python wait.py URL``."""

import sys
import time
import urllib.error
import urllib.request

for _ in range(240):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5).close()
        break
    except urllib.error.HTTPError:
        break
    except OSError:
        time.sleep(0.5)
else:
    raise SystemExit(f"nothing answers at {sys.argv[1]}")
