#!/bin/bash
# Writes every record to stderr, where the host logs it, and checkpoints each batch. Needs bash and jq.
exec 3>&1 1>&2 # 3 is the host; whatever else prints goes to stderr

say() {
    printf '%s\n' "$1" >&3
}

checkpoint() { # of everything delivered so far; nothing is lost by a refusal, the next one makes up for it
    say '{"action":"checkpoint","sequenceNumber":null}'
    IFS= read -r answer || exit 1
    [[ $answer == *'"error":null'* ]] || echo "WARN checkpoint refused: $answer"
}

# The host writes the next line only after the answer to this one, so head cannot take too much. Bash's own read would
# ask the kernel for every single byte.
while line=$(head -n 1) && [[ $line ]]; do
    action=${line#'{"action":"'} # the host writes the action first
    action=${action%%'"'*}
    case $action in
    processRecords)
        jq -r '.records[] | .partitionKey + " " + (.data | @base64d)' <<<"$line"
        checkpoint
        ;;
    shardEnded | shutdownRequested) checkpoint ;;
    esac
    say "{\"action\":\"status\",\"responseFor\":\"$action\"}"
done
