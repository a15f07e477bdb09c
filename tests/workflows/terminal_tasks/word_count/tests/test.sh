#!/bin/sh
exec python3 /tests/check.py
