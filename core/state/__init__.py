"""What a sequence leaves behind between steps: KV pages, recurrent slots, prefixes, snapshots.

Bookkeeping only. The numbers live in a backend's `State`, which nothing here looks into.
"""
