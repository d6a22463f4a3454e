"""HTML pages of results: one file each, which needs no other file and no network."""

from transport.pages.page import INSTALL, Table, as_it_is, installed, plot, rendered

__all__ = ["INSTALL", "Table", "as_it_is", "installed", "plot", "rendered"]
