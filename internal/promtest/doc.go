// Package promtest tests the metrics, the dashboard and the alert rules with a real Prometheus.
//
// Prometheus and promtool are those on PATH, or those that scripts/deps test unpacks into
// build/prometheus. Without them the tests skip, except where CI=true.
package promtest
