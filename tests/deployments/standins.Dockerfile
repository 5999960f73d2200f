# PostgreSQL and Redis from Debian, for a machine that can pull no image: what deployments/compose.yaml uses of the
# public images, and no more.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update -q && apt-get install -y -q --no-install-recommends postgresql redis-server && \
    ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ 2>/dev/null; command -v postgres redis-server
COPY postgres.sh /postgres.sh
CMD ["sh", "/postgres.sh"]
