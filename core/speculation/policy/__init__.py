"""How much to draft, with which drafter, and when to try again."""
