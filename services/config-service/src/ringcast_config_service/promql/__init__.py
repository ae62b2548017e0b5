"""PromQL conditions of the gates of releases, asked at the Prometheus that the operator names."""
