"""The artifact store: what a stage wrote is whole, verified and traceable, or it is not there.

Local directories and object stores, tables, leases, and the fingerprint of code.
"""
