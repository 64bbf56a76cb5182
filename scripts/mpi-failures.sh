#!/usr/bin/env bash
# What happens to a job when one of its ranks is killed, hangs, fails or panics: a table
# of the tests that do so under each MPI launcher that is installed. Each job is started
# again afterwards, and must end with the bits of one that was never disturbed.
#
#   scripts/mpi-failures.sh
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
go test ./zero/comm/mpi -count 1 -timeout 20m -v -run TestARankFails >"$log" 2>&1 || status=$?
awk '
  /^=== RUN.*ranks=/ { split($3, n, "/"); family = n[2]; ranks = n[3]; sub(".*=", "", ranks); what = n[4]; gsub("_", " ", what) }
  /exit code .* after/ && family { sub(".*exit code ", ""); end[family, ranks, what] = $0; family = "" }
  /^ +--- (PASS|FAIL): TestARankFails\/.*ranks=/ {
    split($3, n, "/"); ranks = n[3]; sub(".*=", "", ranks); what = n[4]; gsub("_", " ", what)
    split(end[n[2], ranks, what], e, " after ")
    printf "| %s | %s | %s | %s | %s | %s |\n", n[2], ranks, what, e[1], e[2], $2 == "PASS:" ? "same bits" : "FAILED"
  }
  BEGIN { print "| launcher | ranks | rank 1 in step 4 | exit code | job ended after | resumed |"; print "|---|---|---|---|---|---|" }
' "$log"
[ "${status:-0}" = 0 ] || { tail -n 40 "$log" >&2; exit 1; }
