#!/bin/bash
# The documents: links, named files and functions, width and words (tests/docs.sh); and that each of these is found when it
# is wrong.
. tests/lib/cases.sh

for part in links names width words tables help messages headers; do
    tests/docs.sh $part >"$tmp/found" 2>&1 || cat "$tmp/found" >>"$bad"
    verdict $part
done

# A document (or source) with one mistake of each kind: `part text expected`, the text being all of it.
planted() {
    printf '%s\n' "$2" >"$tmp/$page"
    tests/docs.sh "$1" "$tmp/$page" >"$tmp/found" 2>&1 && wrong "$1: found nothing in: $2"
    grep -qF -- "$3" "$tmp/found" || wrong "$1: no '$3' in: $(cat "$tmp/found")"
}
clean() {
    printf '%s\n' "$2" >"$tmp/$page"
    tests/docs.sh "$1" "$tmp/$page" >"$tmp/found" 2>&1 || wrong "$1: in '$2' it found: $(cat "$tmp/found")"
}
page=planted.md
wide=$(printf 'word %.0s' $(seq 21))
planted links '[a](nowhere.md)' 'planted.md:1: links to nowhere.md'
planted links $'# A heading\n\n[a](#another)' 'no such heading'
planted names 'the file `ops/nothing.c`' 'names ops/nothing.c'
planted names 'the file `nothing.h`' 'names nothing.h'
planted names 'the function `ops/tensor.c:no_such_function`' 'has no no_such_function'
planted names 'all of `ops/cuda/*.nothing`' 'names ops/cuda/*.nothing'
planted width "$wide" ':1: 10'
planted width "| $wide |" ':1: 10'
planted words 'One goes on beside the other.' '"goes on"; write: continues'
planted words 'One goes on beside the other.' '"beside"'
planted words $'```sh\nnothing\n```\nAn exact rule, and the world failed.' ':4: "the world failed"'
planted headers $'#pragma once\n' 'does not begin with the comment "/* planted.md: '
planted headers $'/* other.h: a thing that others call. */' 'does not begin with the comment'
planted headers $'/* planted.md: what it is\n *\n * Another paragraph. */\n#pragma once' 'has no sentence'
planted headers $'/* planted.md: a thing */\n/* of one. */' 'has no sentence'
clean headers $'/* planted.md: a thing that\n * others call. More.\n *\n * Then: a list */\nint x;'
clean links $'# A heading\n\n[a](#a-heading), [b](https://nowhere.example), [c](planted.md)'
clean names 'the files `ops/cpu/*.c`, `tensor.h`, `runs/x/y.c`, `tests/test_NAME.c`; `ops/tensor.c:tensor_bytes`'
clean width $'```\n'"$wide"$'\n```\n\n    '"$wide"$'\n\n| [a](b) '"$wide"$' |'
clean width "$(printf 'ääää %.0s' $(seq 19))"
planted messages 'err_input(e, "%s: it goes on", "no word");' ':1: "goes on"; write: continues'
planted messages $'/* "It goes on." */\nf("it goes"\n  " on\\n", "x");' ':2: "goes on"'
planted messages $'#define WHAT \\\n    "it stands " \\\n    "beside it"' ':2: "beside"'
clean messages $'/* It goes on,\n "beside it". */ f(\047"\047, "goes", "on \\" one"); // "goes on" here'
clean words 'The word `beside` in code, and [a link](beside.md).'
planted tables $'<!-- kvsmith info --policies -->\n| policy | source |\n\nMore.' 'is not what kvsmith info --policies prints'
page=add-planted.md # a page for contributors: its identifiers, too
planted names 'the flag `takes_bf17`' 'names takes_bf17'
planted names 'the call `no_such_call(slot, ...)`' 'names no_such_call'
planted names 'the member `Mixer.no_such_member`' 'names no_such_member'
planted names 'a helper of a test that the page does not name: `lion_rule`' 'names lion_rule'
planted names 'the key `optim.no_such_key`' 'names no_such_key'
clean names 'The flag `takes_bf16`, `kv_attend(slot, ...)`, `Mixer.backward`, `optim.kind`, `info`, `field(f, &w->wq, "q", 0)`'
clean names '`lion_rule` of `tests/train/test_optimizers.c`, `no_weight_is_skipped_by_mistake_NAME`, `make no_such_goal`'
page=planted.md
clean names 'elsewhere `takes_bf17`'
verdict mistakes-are-found
