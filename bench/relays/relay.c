/* A minimal relay: passes MQTT packets of QoS 0 on without looking at them.
 *
 *   relay out PORT BROKER    beside the receiving broker: accepts one relay, publishes what it sends
 *   relay in BROKER PORT     beside the publishing broker: subscribes to everything, connects to the other
 *   relay mid PORT NEXT      between two others: accepts one relay, connects to the next
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char buffer[1 << 18];

static struct sockaddr_in loopback(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void quick(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static int dial(const char *port) {
    for (int attempt = 0; attempt < 5000; attempt++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in address = loopback(port);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
            quick(fd);
            return fd;
        }
        close(fd);
        usleep(1000);
    }
    check(1, "connect");
    return -1;
}

static void expect(int fd, int count) {
    char answer[8];
    check(recv(fd, answer, count, MSG_WAITALL) != count, "answer of the broker");
}

static int connect_to_broker(const char *port, const char *prefix) {
    char packet[64], name[32];
    int fd = dial(port), length = snprintf(name, sizeof name, "%s-%d", prefix, getpid());
    char head[] = {0x10, (char)(12 + length), 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, (char)length};
    memcpy(packet, head, sizeof head);
    memcpy(packet + sizeof head, name, length);
    check(write(fd, packet, sizeof head + length) < 0, "write");
    expect(fd, 4);
    return fd;
}

int main(int count, char **words) {
    int from, to;
    if (count != 4) return 2;
    if (strcmp(words[1], "in") == 0) {
        char subscribe[] = {(char)0x82, 6, 0, 1, 0, 1, '#', 0};
        from = connect_to_broker(words[2], "relay-in");
        to = dial(words[3]);
        check(write(from, subscribe, sizeof subscribe) < 0, "write");
        expect(from, 5);
    } else {
        int on = 1, listening = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in address = loopback(words[2]);
        setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        check(bind(listening, (struct sockaddr *)&address, sizeof address), "bind");
        check(listen(listening, 1), "listen");
        to = strcmp(words[1], "mid") == 0 ? dial(words[3]) : connect_to_broker(words[3], "relay-out");
        from = accept(listening, NULL, NULL);
        quick(from);
    }
    for (;;) {
        ssize_t size = read(from, buffer, sizeof buffer);
        if (size <= 0) return 0;
        for (ssize_t sent = 0, more; sent < size; sent += more) {
            more = write(to, buffer + sent, size - sent);
            if (more < 0) return 1;
        }
    }
}
