# cases.sh: what the shell tests share; sourced from the repository's root. $prog is the program, $tmp a directory that goes
# with the test; `wrong TEXT` notes what does not hold, `verdict NAME` closes a case and reports it.
set -u
export LC_ALL=C.UTF-8 # decimals have points
build=${BUILD:-build}
prog=$(realpath "${KVSMITH:-$build/kvsmith}")
tmp=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$tmp"' EXIT
bad=$tmp/bad
: >"$bad"
verdict() {
    if [ -s "$bad" ]; then
        sed 's/^/  /' "$bad" | head -n 20
        echo "not ok $1: see above"
    else
        echo "ok $1"
    fi
    : >"$bad"
}
wrong() { echo "$*" >>"$bad"; }
# So many seconds (or tries) of an idle machine of ordinary speed as a whole number of this one's: run.sh has measured it.
patience() { awk -v n="$1" -v slow="${TEST_SLOW:-1}" 'BEGIN { x = n * (slow > 1 ? slow : 1); print int(x) + (x > int(x)) }'; }
# Ids of the processes named $1 ('' is any) whose parent is $2 ('' is any): a bare Debian has no pgrep.
processes() {
    local stat line name rest
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue # it has ended meanwhile
        name=${line#*(} rest=${line##*) }
        rest=(${rest})
        [ -n "$1" ] && [ "${name%)*}" != "$1" ] && continue
        [ -z "$2" ] || [ "${rest[1]}" = "$2" ] && echo "${line%% *}"
    done
}
# The processes of a launcher, by their ranks, not their numbers, which begin again at pid_max.
ranks_of() {
    local p
    for p in $(processes '' "$1"); do
        echo "$(tr '\0' '\n' <"/proc/$p/environ" | sed -n 's/^KVSMITH_RANK=//p') $p"
    done 2>/dev/null | grep '^[0-9]' | sort -n | cut -d ' ' -f 2
}
