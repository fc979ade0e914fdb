// Captures up to the first packet shorter than 100 bytes, and prints what the ledger's functions say at the end.
//
// verdict DEVICE
#include <stdio.h>
#include <string.h>
#include <wirecap.h>

int main(int argc, char **argv) {
    wirecap_group *group = wirecap_group_new();
    wirecap_group_add(group, argc > 1 ? argv[1] : "");
    wirecap_group_set_engine(group, WIRECAP_ENGINE_PACKET);
    wirecap_group_set_direction(group, WIRECAP_DIRECTION_IN);
    wirecap_capture *capture = wirecap_open(group);
    fprintf(stderr, "%s\n", capture ? "ready" : wirecap_error());
    wirecap_worker *worker = wirecap_worker_open(capture, 0);
    wirecap_chunk *chunk;
    int more = 1;
    while (more && wirecap_next(worker, WIRECAP_FOREVER, &chunk) == WIRECAP_OK) {
        struct wirecap_packet packet;
        for (uint32_t n = 0; more && wirecap_chunk_packets(chunk, n, &packet, sizeof packet, 1) == 1; n++) more = packet.caplen >= 100;
        wirecap_recycle(chunk);
    }
    wirecap_ledger *ledger;
    if (wirecap_close(capture, &ledger) < 0) { printf("WRONG: %s\n", wirecap_error()); return 1; }
    struct wirecap_verdict verdict;
    struct wirecap_unseen unseen[4];
    if (wirecap_ledger_verdict(ledger, &verdict, sizeof verdict) != WIRECAP_OK) printf("WRONG: %s\n", wirecap_error());
    int count = wirecap_ledger_unseen(ledger, unseen, sizeof *unseen, 4);
    const char *text = wirecap_ledger_verdict_text(ledger), *table = wirecap_ledger_text(ledger);
    if (strcmp(strrchr(table, '\n') + 1, text)) printf("WRONG: the table ends with another verdict\n");
    if (count != (int)verdict.unseen) printf("WRONG: %u unseen periods, %d are listed\n", verdict.unseen, count);
    printf("answer %u lost %llu\n%s\n", verdict.answer, (unsigned long long)verdict.lost, text);
    for (int n = 0; n < count && n < 4; n++) {
        int is_period = unseen[n].to_ns != WIRECAP_NOT_REPORTED && unseen[n].to_ns > unseen[n].from_ns;
        printf("%s: %s, %s\n", unseen[n].interface, unseen[n].reason, is_period ? "a period" : "no period");
    }
    wirecap_ledger_free(ledger);
    return 0;
}
