"""`engram bench learn`: trains recipes (`task=NAME`) over several seeds and compares them with published figures."""
