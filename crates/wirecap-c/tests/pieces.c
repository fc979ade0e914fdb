// Prints for each packet, up to the first one shorter than 100 bytes, its length, the number of its pieces, and whether
// they have the same bytes.
//
// pieces DEVICE
#include <stdio.h>
#include <string.h>
#include <wirecap.h>

static int is_same(const struct wirecap_packet *packet, const struct iovec *pieces, int count) {
    uint32_t at = 0;
    for (int n = 0; n < count; at += (uint32_t)pieces[n++].iov_len)
        if (at + pieces[n].iov_len > packet->caplen || memcmp(packet->data + at, pieces[n].iov_base, pieces[n].iov_len)) return 0;
    return at == packet->caplen;
}

static int say(wirecap_chunk *chunk, uint32_t n, const struct wirecap_packet *packet) {
    struct iovec pieces[16];
    int count = wirecap_chunk_pieces(chunk, n, pieces, 16);
    printf("%u in %d: %s\n", packet->caplen, count, is_same(packet, pieces, count) ? "the same" : "WRONG");
    /* With less space, fewer pieces are stored, but the returned count is the same. */
    if (count > 1 && (wirecap_chunk_pieces(chunk, n, pieces + 1, 1) != count || pieces[1].iov_base != pieces[0].iov_base)) printf("WRONG\n");
    return packet->caplen >= 100;
}

int main(int argc, char **argv) {
    wirecap_group *group = wirecap_group_new();
    wirecap_group_add(group, argc > 1 ? argv[1] : "");
    wirecap_group_set_engine(group, WIRECAP_ENGINE_XDP);
    wirecap_capture *capture = wirecap_open(group);
    fprintf(stderr, "%s\n", capture ? "ready" : wirecap_error());
    wirecap_worker *worker = wirecap_worker_open(capture, 0);
    wirecap_chunk *chunk;
    int more = 1;
    while (more && wirecap_next(worker, WIRECAP_FOREVER, &chunk) == WIRECAP_OK) {
        struct wirecap_packet packet;
        for (uint32_t n = 0; more && wirecap_chunk_packets(chunk, n, &packet, sizeof packet, 1) == 1; n++) more = say(chunk, n, &packet);
        wirecap_recycle(chunk);
    }
    wirecap_close(capture, NULL);
    return more;
}
