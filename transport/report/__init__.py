"""A report of a traced job as one HTML page, for its engineers and for those who pay for it."""

from transport.report.content import Content, Options, content_of
from transport.report.page import PAGE_BYTES_MAX, page
from transport.report.section import Source
from transport.report.whole import report_of

__all__ = ["PAGE_BYTES_MAX", "Content", "Options", "Source", "content_of", "page", "report_of"]
