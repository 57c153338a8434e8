"""Findings: one family a file, each rule one documented class."""
