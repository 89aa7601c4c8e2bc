#!/bin/sh
# The C compiler of the tests. What it has compiled before, the same text with the same arguments, it copies: dozens of
# tests begin with an empty cache or without one, and the kernel for products takes seconds.
for out; do :; done
case "$*" in *" -o $out") ;; *) exec cc "$@" ;; esac
cc "$@" -E -P || exit # into the file that is asked for
kept=$(dirname "$0")/../build/libraries
made=$kept/$({ cat "$out" && echo "${*%"$out"}"; } | sha256sum | cut -c1-32)
[ -e "$made" ] || { mkdir -p "$kept" && cc "$@" && cp "$out" "$made.$$" && mv "$made.$$" "$made"; } || exit
cp "$made" "$out"
