// Executes commands on a handle, one per line, and prints the results.
//
// filters DEVICE
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pcap_t *p;
static const char *next_filter;

static int set_filter(const char *text) {
    struct bpf_program program;
    int status = pcap_compile(p, &program, text, 1, PCAP_NETMASK_UNKNOWN);
    if (status) return status;
    status = pcap_setfilter(p, &program);
    pcap_freecode(&program);
    return status;
}

static int cut(unsigned bytes) {
    struct bpf_insn insn = BPF_STMT(BPF_RET | BPF_K, bytes);
    struct bpf_program program = {1, &insn};
    return pcap_setfilter(p, &program);
}

// Prints the low byte of a packet's number, or the packet's length if the number was truncated.
static void show(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)user;
    if (header->caplen > 55) printf(" %d", data[55]);
    else printf(" %u bytes", header->caplen);
    if (next_filter && set_filter(next_filter)) printf(" %s", pcap_geterr(p));
    next_filter = NULL;
}

static void read_all(void) {
    char errbuf[PCAP_ERRBUF_SIZE];
    usleep(100000); // longer than the kernel keeps packets here
    pcap_setnonblock(p, 1, errbuf);
    if (pcap_dispatch(p, -1, show, NULL) < 0) printf(" %s", pcap_geterr(p));
    while (pcap_dispatch(p, -1, show, NULL) > 0);
    pcap_setnonblock(p, 0, errbuf);
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE], line[200];
    struct pcap_stat stats;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2 || !(p = pcap_open_live(argv[1], 1000, 1, 10, errbuf))) { puts(errbuf); return 1; }
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        char *argument = strchr(line, ' ');
        if (argument) *argument++ = 0;
        int status = 0;
        printf("%s", line);
        if (!strcmp(line, "filter")) status = set_filter(argument);
        else if (!strcmp(line, "cut")) status = cut(atoi(argument));
        else if (!strcmp(line, "read")) { next_filter = argument; read_all(); }
        else if (!strcmp(line, "nobody")) status = setgid(65534) || setuid(65534);
        else if (!strcmp(line, "stats") && !(status = pcap_stats(p, &stats))) printf(" %u %u", stats.ps_recv, stats.ps_drop);
        printf("%s\n", status ? pcap_geterr(p) : "");
    }
    pcap_close(p);
    return 0;
}
