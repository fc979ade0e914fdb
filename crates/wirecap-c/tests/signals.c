// A capture stopped by a signal handler; versions, statuses and interfaces reported by the library.
//
// signals DEVICE
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <wirecap.h>

static volatile int stop_fd = -1;

static void on_alarm(int number) {
    (void)number;
    if (write(stop_fd, "twice", 2) != 2) _exit(9);
}

// The device structure as a later version of the header may declare it.
struct later { struct wirecap_device device; uint64_t more; };

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    printf("version: %d, %d\n", wirecap_version_number() == WIRECAP_VERSION_NUMBER, WIRECAP_VERSION_NUMBER >= 1000);
    printf("status: %s; %s\n", wirecap_status_text(WIRECAP_ERROR_DEVICE), wirecap_status_text(77));

    struct later devices[16];
    memset(devices, 0xff, sizeof devices);
    int count = wirecap_devices(&devices[0].device, sizeof devices[0], 16), found = 0;
    for (int n = 0; n < count; n++) {
        if (strcmp(devices[n].device.name, argv[1]) || devices[n].more) continue;
        found = devices[n].device.mtu == 1500 && devices[n].device.flags & WIRECAP_DEVICE_UP && !strcmp(devices[n].device.driver, "veth");
    }
    printf("devices: %d, found: %d, none asked for: %d\n", count, found, wirecap_devices(NULL, sizeof devices[0], 0));
    printf("a size that cannot be: %d\n", wirecap_devices(&devices[0].device, 1, 16) == WIRECAP_ERROR_ARGUMENT);

    wirecap_group *group = wirecap_group_new();
    wirecap_group_add(group, argv[1]);
    wirecap_group_set_engine(group, WIRECAP_ENGINE_PACKET);
    wirecap_capture *capture = wirecap_open(group);
    if (!capture) { printf("%s\n", wirecap_error()); return 1; }
    stop_fd = wirecap_stop_fd(capture);
    printf("the same descriptor: %d\n", stop_fd >= 0 && wirecap_stop_fd(capture) == stop_fd);
    signal(SIGALRM, on_alarm);
    alarm(1);
    wirecap_worker *worker = wirecap_worker_open(capture, 0);
    wirecap_chunk *chunk;
    int status;
    while ((status = wirecap_next(worker, 10000000000, &chunk)) == WIRECAP_OK) wirecap_recycle(chunk);
    printf("next: %s\n", wirecap_status_text(status));
    wirecap_worker_close(worker);
    printf("close: %d\n", wirecap_close(capture, NULL));
    wirecap_group_free(group);
    return 0;
}
