#!/bin/sh
echo "$GREETING, $(cat name.txt)!" > /app/hello.txt
