// Details of libpcap's behaviour that programs notice. The output must be the same with both libraries.
//
// small TAP PEER ODD: ODD is an interface with an @ and a number in its name.
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char pcap_version[];

static char errbuf[PCAP_ERRBUF_SIZE];

static void nothing(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)user, (void)header, (void)data;
}

static void set_up(const char *device, int up) {
    char command[64];
    snprintf(command, sizeof command, "ip link set %s %s", device, up ? "up" : "down");
    if (system(command)) printf("ip failed\n");
}

static void header_after_nothing(const char *tap) {
    struct pcap_pkthdr *header = NULL;
    const unsigned char *data = NULL;
    pcap_t *p = pcap_open_live(tap, 100, 1, 10, errbuf);
    pcap_setnonblock(p, 1, errbuf);
    printf("next_ex: %d", pcap_next_ex(p, &header, &data));
    printf(", header %s, data %s\n", header ? "there" : "null", data ? "there" : "null");
    pcap_close(p);
}

// Sends more than a slow interface accepts: frames that do not fit are rejected without waiting.
static void inject_without_waiting(const char *tap) {
    static unsigned char frame[1400] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5};
    pcap_t *p = pcap_open_live(tap, 100, 1, 10, errbuf);
    pcap_setnonblock(p, 1, errbuf);
    int sent = 0, refused = 0;
    alarm(10);
    for (int n = 0; n < 2000 && !refused; n++) {
        int status = pcap_inject(p, frame, sizeof frame);
        if (status == sizeof frame) sent++;
        else { refused++; printf("inject: %d %s\n", status, pcap_geterr(p)); }
    }
    alarm(0);
    printf("some were sent: %d, one was refused: %d\n", sent > 10, refused);
    pcap_close(p);
}

// A handle with a snapshot length of 1 and no timeout only counts packets, as on Wireshark's start page:
// packets wait until a block is full, and no timer runs meanwhile.
static void only_counts(const char *tap, const char *peer) {
    static unsigned char frame[60] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5};
    pcap_t *p = pcap_open_live(tap, 1, 1, 0, errbuf), *sender = pcap_open_live(peer, 100, 0, 10, errbuf);
    pcap_setnonblock(p, 1, errbuf);
    for (int n = 0; n < 3; n++) pcap_inject(sender, frame, sizeof frame);
    usleep(300000);
    struct pcap_stat stats;
    printf("dispatch: %d", pcap_dispatch(p, -1, nothing, NULL));
    printf(", stats: %d", pcap_stats(p, &stats));
    printf(", counted %u\n", stats.ps_recv);
    pcap_close(sender);
    pcap_close(p);
}

// A failed activation leaves the handle's settings unchanged.
static void fails_to_open(const char *tap) {
    pcap_t *p = pcap_create(tap, errbuf);
    struct pcap_pkthdr *header;
    const unsigned char *data;
    pcap_set_snaplen(p, 77);
    pcap_set_promisc(p, 1);
    set_up(tap, 0);
    printf("activate while down: %d", pcap_activate(p));
    printf(" (%s), snapshot %d, next_ex %d", pcap_geterr(p), pcap_snapshot(p), pcap_next_ex(p, &header, &data));
    printf(", setter %d\n", pcap_set_timeout(p, 10));
    set_up(tap, 1);
    pcap_close(p);
}

// A filter with more instructions than the kernel accepts: the library filters, and counts the packets that
// it rejects.
static void counts_refused(const char *tap, const char *peer) {
    static unsigned char frame[60] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5};
    static struct bpf_insn insns[4200];
    for (int n = 0; n < 4198; n++) insns[n] = (struct bpf_insn){BPF_LD | BPF_IMM, 0, 0, 1};
    insns[4198] = (struct bpf_insn){BPF_RET | BPF_K, 0, 0, 0};
    insns[4199] = (struct bpf_insn){BPF_RET | BPF_K, 0, 0, 0};
    struct bpf_program program = {4200, insns};
    pcap_t *p = pcap_open_live(tap, 100, 1, 10, errbuf), *sender = pcap_open_live(peer, 100, 0, 10, errbuf);
    pcap_setnonblock(p, 1, errbuf);
    printf("long filter: %d", pcap_setfilter(p, &program));
    for (int n = 0; n < 5; n++) pcap_inject(sender, frame, sizeof frame);
    int got = 0;
    for (int n = 0; n < 20; n++) {
        usleep(20000);
        got += pcap_dispatch(p, -1, nothing, NULL);
    }
    struct pcap_stat stats;
    printf(", got %d, stats: %d", got, pcap_stats(p, &stats));
    printf(", counted %u\n", stats.ps_recv);
    pcap_close(sender);
    pcap_close(p);
}

static void odd_name(const char *odd) {
    pcap_t *p = pcap_create(odd, errbuf);
    int status = pcap_activate(p);
    printf("activate %s: %d %s, link type %d\n", odd, status, status < 0 ? pcap_geterr(p) : "", pcap_datalink(p));
    pcap_close(p);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    header_after_nothing(argv[1]);
    odd_name(argv[3]);
    only_counts(argv[1], argv[2]);
    fails_to_open(argv[1]);
    counts_refused(argv[1], argv[2]);
    printf("version %s is in %s: %d\n", pcap_version, pcap_lib_version(), strstr(pcap_lib_version(), pcap_version) != NULL);
    inject_without_waiting(argv[1]);
    return 0;
}
