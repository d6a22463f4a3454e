"""Tests of the policy compiler: the language, its checks, the compiled libraries."""
