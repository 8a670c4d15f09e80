"""Drafters: one file for each way to propose tokens."""
