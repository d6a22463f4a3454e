"""Tests of the policy compiler: the language, its checks, the libraries it makes."""
