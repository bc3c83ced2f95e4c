"""The report: plans, runs, ciphertext plans and stores on one HTML page."""

from weft.report.data import Subject, report_data
from weft.report.page import render, write

__all__ = ["Subject", "render", "report_data", "write"]
