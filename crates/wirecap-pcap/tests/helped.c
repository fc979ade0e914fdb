// Two handles of a group. One flow fills the ring of one of them, and the other one reads its packets. Prints the
// packets that each handle has received, before and after, and the packets that were read.
//
// helped PACKETS DEVICE DEVICE
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pcap_t *handles[2];
static long total;

static void handle(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)user; (void)header; (void)data;
    total++;
}

static long received(int n) {
    struct pcap_stat stats;
    if (pcap_stats(handles[n], &stats)) exit(1);
    return stats.ps_recv;
}

int main(int argc, char **argv) {
    (void)argc;
    char errbuf[PCAP_ERRBUF_SIZE];
    long sent = atol(argv[1]);
    for (int n = 0; n < 2; n++) {
        handles[n] = pcap_open_live(argv[n + 2], 100, 1, 20, errbuf);
        if (!handles[n] || pcap_setnonblock(handles[n], 1, errbuf)) { printf("%s\n", errbuf); return 1; }
    }
    printf("ready\n");
    fflush(stdout);
    for (int hundredths = 0; received(0) + received(1) < sent && hundredths < 3000; hundredths++) usleep(10000);
    printf("before: %ld\n", received(0) + received(1));
    int helper = received(0) == 0 ? 0 : 1;
    for (int hundredths = 0; total < sent && hundredths < 3000; hundredths++) {
        // The rest below the threshold is read by the handle whose ring it is.
        int count = pcap_dispatch(handles[helper], -1, handle, NULL);
        if (count < 0) return 1;
        if (count == 0) {
            if (hundredths == 0) printf("nothing to help with\n");
            pcap_dispatch(handles[!helper], -1, handle, NULL);
            usleep(10000);
        }
    }
    printf("read %ld, received %ld\n", total, received(0) + received(1));
    return 0;
}
