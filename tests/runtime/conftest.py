"""Programs of these tests are not kept in the user's cache."""

import os

os.environ["POLYRHYTHM_CACHE"] = ""
