"""The program that drives Chromium for the guest, as a user of its own: it reads requests and answers them, one line of JSON each.

It speaks the Chrome DevTools Protocol over a pipe to the browser. Standard library only. What it answers is as hostile as the
pages that the browser shows: the guest checks all of it.
"""
