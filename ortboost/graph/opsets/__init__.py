"""Opsets: conversion to newer and older ones, and what a runtime lacks of them."""
