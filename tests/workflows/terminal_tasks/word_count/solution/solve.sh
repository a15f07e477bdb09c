#!/bin/sh
cp /solution/count.py /app/count.py
python3 count.py < /srv/data/text.txt > /srv/data/count.txt
