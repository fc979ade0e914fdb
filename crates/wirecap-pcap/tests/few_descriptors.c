// Opens two handles of a group; while the second one is opened, the process has too few descriptors at first, then one
// more each time. After each failure the first handle must be alone in the group, which another filter shows.
// Prints each error, and "opened" at the end.
#include <fcntl.h>
#include <pcap/pcap.h>
#include <stdio.h>
#include <sys/resource.h>

static pcap_t *open_device(void) {
    static char errbuf[PCAP_ERRBUF_SIZE];
    pcap_t *p = pcap_open_live("a1", 65535, 1, 20, errbuf);
    if (!p) printf("%s\n", errbuf);
    return p;
}

// The limit that leaves so many descriptors. libpcap 1.10.3 does not close the eventfd of a handle that was never
// activated, so the used ones are counted each time.
static int limit_with_free(int count) {
    int limit = 0;
    for (int free = 0; free <= count; limit++) free += fcntl(limit, F_GETFD) == -1;
    return limit - 1;
}

int main(void) {
    pcap_t *first = open_device(), *second = NULL;
    if (!first) return 1;
    struct bpf_program programs[2];
    const char *filters[2] = {"udp", "tcp"};
    for (int n = 0; n < 2; n++)
        if (pcap_compile(first, programs + n, filters[n], 1, 0)) return 1;
    struct rlimit enough;
    getrlimit(RLIMIT_NOFILE, &enough);
    for (int more = 0; !second && more < 64; more++) {
        struct rlimit few = {limit_with_free(more), enough.rlim_max};
        setrlimit(RLIMIT_NOFILE, &few);
        second = open_device();
        setrlimit(RLIMIT_NOFILE, &enough);
        if (!second && pcap_setfilter(first, programs + more % 2)) {
            printf("not alone with %d more: %s\n", more, pcap_geterr(first));
            return 1;
        }
    }
    if (!second) return 1;
    // The same filter may be set, and now another one may not.
    int other = pcap_setfilter(second, programs), same = pcap_setfilter(second, programs + 1);
    printf("%s\n", (other == 0) != (same == 0) ? "opened" : "not in the group");
    pcap_close(second);
    pcap_close(first);
    return 0;
}
