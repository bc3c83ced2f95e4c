"""The report: plans, runs, ciphertext plans and stores on one page, made for looking."""

from weft.report.data import Subject, report_data
from weft.report.page import render, write

__all__ = ["Subject", "render", "report_data", "write"]
