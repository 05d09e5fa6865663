"""Load generators that drive a running server over HTTP."""
