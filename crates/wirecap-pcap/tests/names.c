// Uses the data that libpcap exports, and prints which libraries are loaded.
#include <pcap/pcap.h>
#include <stdio.h>
#include <string.h>
#include <netdb.h>
#include <pcap/namedb.h>

struct eproto { const char *s; unsigned short p; };
extern struct eproto eproto_db[];
extern char pcap_version[];

int main(void) {
    char line[4096], errbuf[PCAP_ERRBUF_SIZE] = "";
    printf("%s\n", pcap_version);
    for (struct eproto *e = eproto_db; e->s; e++) printf("%s %x\n", e->s, e->p);
    pcap_t *p = pcap_open_dead(DLT_EN10MB, 77);
    if (!p) {
        p = pcap_create("lo", errbuf);
        printf("open: %s\n", errbuf);
        return 1;
    }
    struct bpf_program program;
    printf("compile %d\n", pcap_compile(p, &program, "ip6 and tcp port http", 1, 0));
    bpf_dump(&program, 1);
    pcap_freecode(&program);
    pcap_close(p);
    int drop_in = 0, real = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        drop_in |= strstr(line, "wirecap_pcap") != NULL;
        real |= strstr(line, "/libpcap.so.1.") != NULL;
    }
    if (real) printf("loaded: real\n");
    if (drop_in) printf("loaded: drop-in\n");
    return 0;
}
