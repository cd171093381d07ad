"""The data sets that others distribute, one module each; `hemnet.data.catalog` lists them.

A module names its data set's classes, colours, official sizes and archives, finds the files of a
split and converts raw labels.
"""
