"""What an evaluation leaves behind: JSON, CSV, arrays, plots, a page."""

from depthkit.utilization.report.report import SCHEMA_VERSION, Report

__all__ = ["SCHEMA_VERSION", "Report"]
