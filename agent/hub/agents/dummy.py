"""x"""
SPECS = ()
