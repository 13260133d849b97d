#!/bin/bash
# Writes every record to stderr, where the host logs it, and checkpoints each batch. Needs bash and coreutils.
exec 3>&1 1>&2 # 3 is the host; whatever else prints goes to stderr

say() {
    printf '%s\n' "$1" >&3
}

checkpoint() { # of everything delivered so far; a refusal ends us, and the host starts anew from the last one
    say '{"action":"checkpoint","sequenceNumber":null}'
    IFS= read -r answer && [[ $answer == *'"error":null'* ]] || exit 1
}

while IFS= read -r line; do
    action=${line#'{"action":"'} # the host writes the action first
    action=${action%%'"'*}
    case $action in
    processRecords)
        # A quotation mark inside a string is written \", so this finds the key "data" and nothing else.
        grep -o '"data":"[^"]*"' <<<"$line" | cut -d '"' -f 4 | while read -r data; do
            base64 -d <<<"$data"
            echo
        done
        checkpoint
        ;;
    shardEnded | shutdownRequested) checkpoint ;;
    esac
    say "{\"action\":\"status\",\"responseFor\":\"$action\"}"
done
