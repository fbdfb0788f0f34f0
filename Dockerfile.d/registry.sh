# Sourced by the two scripts beside it: where packages come from, as two build secrets say that no layer keeps.
# `registry`: shell assignments such as UV_DEFAULT_INDEX=...; `certificates`: a bundle to trust instead of the base's own.
if [ -s /run/secrets/registry ]; then
  set -a
  . /run/secrets/registry
  set +a
fi
if [ -s /run/secrets/certificates ]; then
  export SSL_CERT_FILE=/run/secrets/certificates PIP_CERT=/run/secrets/certificates
fi
