"""Tests of messages that pass through memory which two processes of one host share."""
