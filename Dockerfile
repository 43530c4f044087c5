# syntax=docker/dockerfile:1

# The builder has a C compiler and make, which is all that the crypto library (aws-lc) and the
# allocator (jemalloc) need on Linux.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
# The caches keep downloaded and compiled dependencies from one build to the next.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin sluice \
    && cp target/release/sluice /usr/local/bin/sluice

FROM debian:bookworm-slim
COPY --from=build /usr/local/bin/sluice /usr/local/bin/sluice
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
EXPOSE 8080 9901
ENTRYPOINT ["sluice"]
# Mount the folder that holds gateway.yaml rather than the file alone: most editors replace a file
# when they save it, and a mount of the file would go on showing the old one.
CMD ["run", "-c", "/etc/sluice/gateway.yaml"]
