"""HTML pages of results: one file each, which needs no other file and no network."""

from transport.pages.page import INSTALL, as_it_is, installed, picture, rendered

__all__ = ["INSTALL", "as_it_is", "installed", "picture", "rendered"]
