# One static binary and nothing else: no registry is needed, online or offline.
#
# `.ci/image` builds the binary, lays it into dist/ and builds this image as ephemeris:dev.
FROM scratch
COPY dist/ephemeris /ephemeris
# An empty directory: a new volume takes over its owner.
COPY --chown=65532:65532 dist/data /data
# No user is named in an image without /etc/passwd; numbers need no names.
USER 65532:65532
# Flags and variables of a container win over these.
ENV EPHEMERIS_DATA_DIR=/data EPHEMERIS_HTTP=0.0.0.0:8081
# RocksDB's memory in two heaps, not in one for each of its threads: a tenth less of it.
ENV MALLOC_ARENA_MAX=2
VOLUME /data
# Clients, then other nodes.
EXPOSE 8081 7000
HEALTHCHECK --interval=2s --timeout=3s --start-period=30s --retries=5 \
    CMD ["/ephemeris", "healthcheck"]
ENTRYPOINT ["/ephemeris"]
CMD ["start-single-node"]
