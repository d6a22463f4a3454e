"""Decides that shipped policies still do, to the last segment, what they were seen to do.

`make golden` writes the tables and traces anew; a change of one is a commit of its own.
"""
