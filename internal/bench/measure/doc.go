// Package measure holds repeated measurements, and describes the machine of a measurement.
package measure
