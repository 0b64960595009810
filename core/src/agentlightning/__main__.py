"""``python -m agentlightning``: the command ``agl``."""

from _agl_main import main

if __name__ == "__main__":
    main()
